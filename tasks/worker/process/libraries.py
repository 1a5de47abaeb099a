"""How the libraries of the worker plane behave: no network, no progress bars in a log, a user for their folders."""

import os
import pwd

QUIET = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
    "USE_TORCH_XLA": "0",  # transformers does not need it here, and importing it fixes the device
}


def name_user() -> None:
    """Set USER where the machine has no name for this process's user, as in an image that was made for another one.

    torch and others ask for the name, for folders of their own, and fail without one.
    """
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        os.environ.setdefault("USER", f"user-{os.getuid()}")
