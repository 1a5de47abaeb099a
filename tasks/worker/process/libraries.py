"""How the libraries of the worker plane behave: no network, no progress bars in a log."""

QUIET = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
    "USE_TORCH_XLA": "0",  # transformers does not need it here, and importing it fixes the device
}
