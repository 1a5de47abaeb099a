"""Paths of objects, `s3://bucket/key`, for places where a local file is taken as well."""

from pathlib import Path, PurePath, PurePosixPath

SCHEME = "s3://"


class S3Path(PurePosixPath):
    """An object or a prefix, `s3://bucket/key`; all methods of a pure path work on it."""

    def __str__(self) -> str:
        return super().__str__().replace("s3:/", SCHEME, 1)

    @property
    def bucket(self) -> str:
        return self.parts[1] if len(self.parts) > 1 else ""

    @property
    def key(self) -> str:
        return "/".join(self.parts[2:])


def local_or_s3(text: str | PurePath) -> PurePath:
    """Return an S3Path of `s3://bucket/key`, and a Path of all else."""
    if isinstance(text, PurePath):
        return text
    return S3Path(text) if text.startswith(SCHEME) else Path(text)


def whole(path: PurePath) -> PurePath:
    """Return an absolute path without links; of an object the same path."""
    return path if isinstance(path, S3Path) else Path(path).resolve()
