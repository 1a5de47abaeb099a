"""Read the records of Parquet in small batches."""

import io
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from tasks.data.files.cursor import Cursor

PARQUET_BATCH_ROWS = 256
PARQUET_BUFFER_BYTES = 2**18


def read_parquet(stream: io.BufferedReader, cursor: Cursor) -> Iterator[dict[str, Any]]:
    """Yield the rows of all row groups; times are datetimes in microseconds."""
    import pyarrow as pa  # not at the top: the command line needs only `Format`
    import pyarrow.parquet as pq

    with tempfile.TemporaryFile() as spooled:
        content: BinaryIO = stream
        if not isinstance(stream.raw, io.FileIO):  # Parquet is read from its end, and packed data can't seek
            shutil.copyfileobj(stream, spooled, 2**16)
            spooled.seek(0)
            content = spooled
        try:
            # INT96 has the years 1 to 9999 in microseconds; Arrow's default, nanoseconds, wraps around in 2262.
            file = pq.ParquetFile(content, buffer_size=PARQUET_BUFFER_BYTES, coerce_int96_timestamp_unit="us")
            names = file.schema_arrow.names
            if doubled := twice(names):
                raise cursor.error(f"two columns are named {doubled[0]!r}; give each column its own name")
            cursor.row = 1
            for group in range(file.num_row_groups):  # one iterator over all groups would keep their memory
                for batch in file.iter_batches(PARQUET_BATCH_ROWS, row_groups=[group], use_threads=False):
                    columns = [_microseconds(column).to_pylist() for column in batch.columns]
                    for row in zip(*columns, strict=True):
                        yield dict(zip(names, row, strict=True))
                        cursor.row += 1
        except UnicodeDecodeError:
            raise
        except KeyError as error:
            raise cursor.error(f"a column has times of the zone {error}, which is unknown") from error
        except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # an error of the disk, not of the file
            raise cursor.error(f"not readable as Parquet: {error}") from error


def twice(names: Sequence[str]) -> list[str]:
    """Return the names that occur more than once, sorted."""
    return sorted(name for name, count in Counter(names).items() if count > 1)


def _microseconds(column: Any) -> Any:
    """Convert nanosecond timestamps: Arrow returns them as pandas objects, but microseconds as datetime."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        return column.cast(pa.timestamp("us", column.type.tz), safe=False)
    return column
