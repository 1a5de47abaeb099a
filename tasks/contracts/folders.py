"""Where the files of a run, a refresh and a publication lie: apart, by the beginning of their keys.

So a listing of the runs does not grow with the hours. What the files are is not said here.
"""

REFRESH = "refresh-"  # begins the run key of a refresh, which trains nothing
PUBLICATION = "publish-"  # begins that of bringing a release to a target
ROOTS = ("runs", "refreshes", "publications")


def run_folder(run_key: str) -> str:
    """Return the folder of a run, a refresh or a publication."""
    if run_key.startswith(REFRESH):
        return f"refreshes/{run_key}"
    return f"publications/{run_key}" if run_key.startswith(PUBLICATION) else f"runs/{run_key}"
