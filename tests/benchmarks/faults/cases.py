"""The faults, grouped by cause, with the expected result of each. How they are caused: acts.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tasks.contracts.stages import Stage
from tests.benchmarks.disturbed.cloud import CloudScene
from tests.benchmarks.disturbed.judge import RELEASED
from tests.benchmarks.faults import acts, server_acts
from tests.support.processes.command import CommandResult

FROM_TRAINING_ON = tuple(Stage)[3:]
ONCE = "each stage once"
NOTHING = "No fault"
AWS = "AWS Batch"
MACHINES = "Machines"
STORE = "S3"
ORCHESTRATOR = "The orchestrator"
SERVER = "The Prefect server"
PEOPLE = "People"
ABOUT = {
    NOTHING: "For comparison.",
    AWS: "Calls are repeated, and no job is ever submitted twice.",
    MACHINES: """AWS Batch retries the faults that it sees, Prefect the rest, from one budget (`retry.attempts`);
        training continues from its last checkpoint.""",
    STORE: "Each request is repeated a few times; then the attempt is retried.",
    ORCHESTRATOR: """The next run finds the job again, or continues from its last checkpoint. A killed process holds its
        lineage for up to a minute more; the next one waits for that.""",
    SERVER: """No stage needs it, and the stage that runs goes on. Then the command says so, starts a server of its own
        again, on the same port, or waits 75 s for one behind `PREFECT_API_URL`, and goes on; else it ends as SERVER,
        within two minutes of the end of the stage.""",
    PEOPLE: "Such a failure is not retried, and its message names the fault and the place to correct.",
}


class Case(NamedTuple):
    """`act` causes the fault and returns how the last command ended."""

    group: str
    fault: str
    act: Callable[[CloudScene], CommandResult]
    outcome: str = RELEASED
    says: tuple[str, ...] = ()  # words in the last command's error output
    attempts: str = ONCE
    jobs: int | None = None  # submitted in all, if that is the point
    stages: tuple[Stage, ...] = (Stage.train,)  # to be done; the others were done before


_SERVER_AWAY = tuple(
    Case(SERVER, f"killed in {stage}, {back}", act, stages=(stage,), jobs=1)
    for stage in Stage
    for back, act in (
        ("back after 5 s", server_acts.server_away(stage, 5.0)),
        ("back after 60 s", server_acts.server_away(stage, 60.0)),
        ("never back; ends as SERVER, run again", server_acts.server_gone(stage)),
    )
)
UNDISTURBED = Case(NOTHING, "none", CloudScene.run, jobs=4, stages=FROM_TRAINING_ON)
CASES = (
    Case(AWS, f"every call is throttled (429) for {acts.OUTAGE_SECONDS:.0f} s", acts.throttled, jobs=1),
    Case(AWS, f"every call is answered with 500 for {acts.OUTAGE_SECONDS:.0f} s", acts.server_errors, jobs=1),
    Case(AWS, "SubmitJob is answered with 500, and there is no job", acts.submission_fails, jobs=1),
    Case(AWS, "each of four SubmitJob calls is accepted, but the reply is lost", acts.reply_lost,
         jobs=4, stages=FROM_TRAINING_ON),
    Case(AWS, "each of four new jobs is not shown for 5 s", acts.job_invisible, jobs=4, stages=FROM_TRAINING_ON),
    Case(AWS, "both: the reply is lost, and the job is not shown for 5 s", acts.reply_lost_and_job_invisible, jobs=1),
    Case(MACHINES, "no machine for the training, and no retry is left", acts.no_machine,
         "CAPACITY", ("no machine in queue millrace-accelerator for 15 s", "try 1 of 1"), "train CAPACITY"),
    Case(MACHINES, "no machine for the first attempt of the training", acts.machine_for_second_try,
         attempts="train CAPACITY, done", jobs=2),
    Case(MACHINES, "the main node's host is lost during training", acts.main_host_lost,
         attempts="train HOST, done", jobs=1),
    Case(MACHINES, "the other node's host is lost during training", acts.child_host_lost,
         attempts="train HOST, done", jobs=1),
    Case(MACHINES, "each of three attempts of the training loses its host", acts.every_host_lost,
         "HOST", ("the machine was lost: Host EC2", "try 3 of 3"), "train HOST, HOST, HOST", jobs=1),
    Case(MACHINES, "one of four inference hosts is lost; the others take its partition", acts.inference_host_lost,
         attempts="infer HOST, done", jobs=1, stages=(Stage.infer,)),
    Case(MACHINES, "a training process makes no progress", acts.worker_stands_still,
         attempts="train HANG, done", jobs=1),
    Case(MACHINES, "the first attempt of the training takes longer than `batch.attempt_seconds`", acts.time_is_up_once,
         attempts="train HANG, done", jobs=2),
    Case(MACHINES, "the same, and no retry is left", acts.time_is_up,
         "HANG", ("ran for longer than batch.attempt_seconds", "try 1 of 1"), "train HANG"),
    Case(MACHINES, "the training's container runs out of memory", acts.out_of_memory,
         "OOM", ("ran out of memory", "lower train.batch_rows"), "train OOM", jobs=1),
    Case(STORE, "two errors in a row at many places, lost replies, answers cut off", acts.store_falters, jobs=1),
    Case(STORE, "a checkpoint is refused at all five requests", acts.store_fails_training,
         attempts="train STORE, done", jobs=1),
    Case(ORCHESTRATOR, "killed with -9 during training; run again", acts.killed_in_training, jobs=1),
    Case(ORCHESTRATOR, "SIGTERM during training; run again", acts.sigterm, attempts="train CANCELLED, done", jobs=2),
    Case(ORCHESTRATOR, "the flow run is cancelled in Prefect during training; run again", acts.flow_run_cancelled,
         attempts="train CANCELLED, done", jobs=2),
    Case(ORCHESTRATOR, "killed with -9, not run again, `millrace reap` ends its job; run again", acts.killed_and_reaped,
         attempts="train HOST, done", jobs=2),
    Case(SERVER, "its own server is killed during training", server_acts.own_server_killed, jobs=1),
    *_SERVER_AWAY,
    Case(PEOPLE, "AWS Batch does not accept the credentials", acts.credentials_refused,
         "CONFIG", ("does not accept the AWS credentials",), "train CONFIG", jobs=0),
    Case(PEOPLE, "SubmitJob is denied", acts.submission_denied,
         "CONFIG", ("AWS denied batch:SubmitJob on job queue 'millrace-accelerator'",), "train CONFIG", jobs=0),
    Case(PEOPLE, "the job queue is missing", acts.no_queue,
         "CONFIG", ("there is no AWS Batch job queue 'nowhere'", "batch.cpu_queue"), "release CONFIG", jobs=0,
         stages=(Stage.release,)),
    Case(PEOPLE, "the job definition is missing", acts.no_definition,
         "CONFIG", ("no active AWS Batch job definition 'nowhere-train'", "batch.definition"), "train CONFIG", jobs=0),
    Case(PEOPLE, "the training's image can't be pulled", acts.no_image,
         "CONFIG", ("millrace/neuronrepository:none could not be pulled",), "train CONFIG", jobs=1),
    Case(PEOPLE, "the bucket is denied", acts.bucket_denied,
         "CONFIG", ("access to bucket", "was denied", "s3:GetObject"), "none", jobs=0),
)  # fmt: skip
