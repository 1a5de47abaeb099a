from tasks.worker.devices.xla_environment import folder_of_machine, own_folder
from tasks.worker.process.job import Rank


def test_the_workers_of_a_machine_share_one_folder_and_a_single_worker_has_its_own():
    first, last = (folder_of_machine(Rank(index, 64, index - 32, 32)) for index in (32, 63))
    assert first == last
    alone = folder_of_machine(Rank(0, 1, 0))
    assert alone != first
    alone.rmdir()


def test_a_process_of_its_own_gets_an_empty_folder():
    first, second = own_folder(), own_folder()
    assert first != second
    for folder in (first, second):
        folder.rmdir()  # which refuses one that is not empty
