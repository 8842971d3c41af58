"""A file in shared memory is made whole or not at all, and refused with the reason unless all of it fits."""

from __future__ import annotations

import errno
import mmap
import os
import resource
import socket
import stat
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeds.errors import ConfigError
from middleware.shm import mapping
from middleware.shm.errors import LayoutError, NotFound, PermissionsError, ShmError
from middleware.shm.mapping import HEADER_BYTES, Layout, create, open_file, read_header, remove_scratch

LAYOUT = Layout("test", 3, ("slot_count", "slot_bytes"))
GEOMETRY = {"slot_count": 64, "slot_bytes": 96}
BODY_BYTES = 2 * mmap.PAGESIZE
FILE_BYTES = HEADER_BYTES + BODY_BYTES

OPENERS = pytest.mark.parametrize(
    "opener",
    [
        lambda path: open_file(path, LAYOUT, is_writable=True),
        lambda path: open_file(path, LAYOUT, is_writable=False),
        lambda path: read_header(path, LAYOUT),
    ],
    ids=["writable", "read-only", "header"],
)
Opener = Callable[[Path], object]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("pristine") / "file"
    make(path)
    return path.read_bytes()


def make(path: Path) -> mapping.MappedFile:
    return create(path, LAYOUT, "spy", GEOMETRY, BODY_BYTES, 0o600)


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def resealed(data: bytes) -> bytes:
    """Return a file's bytes with a header checksum that fits them: damage that only the other checks see."""
    header = data[:HEADER_BYTES]
    crc = zlib.crc32(header[:56] + bytes(4) + header[60:])
    return data[:56] + struct.pack("<I", crc) + data[60:]


def patched(data: bytes, offset: int, piece: bytes) -> bytes:
    return data[:offset] + piece + data[offset + len(piece) :]


class TestMaking:
    def test_new_file_is_a_header_and_zeros(self, path: Path) -> None:
        file = make(path)

        assert file.header.name == "spy"
        assert dict(file.header.geometry) == GEOMETRY
        assert file.header.file_bytes == FILE_BYTES == path.stat().st_size
        assert file.words.dtype == np.int64
        assert file.words.size * 8 == FILE_BYTES
        assert not file.words[HEADER_BYTES // 8 :].any()

    def test_words_that_must_not_be_zero_are_there_from_the_first_moment(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They are in the file before it has its name, so nobody ever opens it without them."""
        real_link = os.link

        def look_and_link(scratch: Path, target: Path) -> None:
            words = np.frombuffer(scratch.read_bytes(), dtype=np.int64)
            assert (words[512], words[FILE_BYTES // 8 - 1]) == (-7, 2**62)
            real_link(scratch, target)

        monkeypatch.setattr(os, "link", look_and_link)
        first = {512: -7, FILE_BYTES // 8 - 1: 2**62}
        words = create(path, LAYOUT, "spy", GEOMETRY, BODY_BYTES, 0o600, first).words
        assert words[512 : FILE_BYTES // 8].nonzero()[0].tolist() == [0, FILE_BYTES // 8 - 513]

    def test_all_its_memory_is_taken_when_it_is_made(self, path: Path) -> None:
        make(path)
        assert path.stat().st_blocks * 512 >= FILE_BYTES

    @pytest.mark.parametrize("mode", [0o600, 0o640])
    def test_mode_is_as_asked_whatever_the_umask(self, path: Path, mode: int) -> None:
        before = os.umask(0o077)
        try:
            create(path, LAYOUT, "spy", GEOMETRY, BODY_BYTES, mode)
        finally:
            os.umask(before)
        assert stat.S_IMODE(path.stat().st_mode) == mode

    def test_two_files_of_one_name_differ_in_their_incarnation(self, path: Path) -> None:
        first = make(path).header.incarnation
        path.unlink()
        assert make(path).header.incarnation != first

    def test_existing_file_is_never_replaced(self, path: Path) -> None:
        path.write_bytes(b"precious")
        with pytest.raises(ShmError, match="exists already"):
            make(path)
        assert path.read_bytes() == b"precious"
        assert names_in(path.parent) == ["file"]

    def test_nothing_is_left_but_the_file(self, path: Path) -> None:
        make(path)
        assert names_in(path.parent) == ["file"]

    @pytest.mark.parametrize("body_bytes", [-mmap.PAGESIZE, 1, mmap.PAGESIZE + 8, mapping.FILE_BYTES_MAX])
    def test_size_outside_the_limits_is_refused(self, path: Path, body_bytes: int) -> None:
        with pytest.raises(ShmError, match="size must be whole pages up to"):
            create(path, LAYOUT, "spy", GEOMETRY, body_bytes, 0o600)
        assert not names_in(path.parent)

    @pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "-flag", "x" * 65, "new\nline", "é"])
    def test_name_that_cannot_be_one_is_refused(self, path: Path, name: str) -> None:
        with pytest.raises(ConfigError, match="a name must be"):
            create(path, LAYOUT, name, GEOMETRY, BODY_BYTES, 0o600)
        assert not names_in(path.parent)

    def test_missing_directory_is_a_clear_error(self, tmp_path: Path) -> None:
        with pytest.raises(ShmError, match=r"cannot make .*: No such file or directory"):
            make(tmp_path / "missing" / "file")

    def test_words_live_on_after_the_file_was_removed(self, path: Path) -> None:
        words = make(path).words
        path.unlink()
        words[600] = 7
        assert words[600] == 7

    def test_both_openings_see_one_memory(self, path: Path) -> None:
        writable = make(path).words
        reader = open_file(path, LAYOUT, is_writable=False).words
        writable[600] = 42
        assert reader[600] == 42

    def test_reader_cannot_write(self, path: Path) -> None:
        make(path)
        words = open_file(path, LAYOUT, is_writable=False).words
        with pytest.raises(ValueError, match="read-only"):
            words[600] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            words.flags.writeable = True


class TestRefusing:
    @OPENERS
    def test_missing_file_is_not_found(self, path: Path, opener: Opener) -> None:
        with pytest.raises(NotFound, match="there is no"):
            opener(path)

    @OPENERS
    def test_other_kind_of_file_is_refused_without_waiting(self, path: Path, opener: Opener) -> None:
        def make_socket() -> None:
            with socket.socket(socket.AF_UNIX) as server:
                os.chdir(path.parent)  # a socket's path is limited to 108 bytes
                server.bind(path.name)

        here = Path.cwd()
        real = make(path.with_name("real"))
        makers: list[Callable[[], None]] = [
            path.mkdir,
            lambda: os.mkfifo(path),
            lambda: path.symlink_to(real.path),
            lambda: path.symlink_to("nowhere"),
            make_socket,
        ]
        for maker in makers:
            maker()
            try:
                with pytest.raises(LayoutError, match="file must be a regular file, was ") as raised:
                    opener(path)
                assert raised.value.path == path
            finally:
                os.chdir(here)
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()

    @OPENERS
    @pytest.mark.parametrize(
        ("field", "offset", "piece", "found", "expected"),
        [
            ("magic", 0, b"NOTATAPE", b"NOTATAPE", b"TWINTAPE"),
            (
                "byte order mark", 8, struct.pack(">Q", 0x0102030405060708),
                "0x0807060504030201", "0x0102030405060708",
            ),
            ("kind", 16, b"ring\0\0\0\0", "ring", "test"),
            ("version", 24, struct.pack("<I", 4), 4, 3),
            ("header size", 28, struct.pack("<I", 8192), 8192, 4096),
            (
                "file size", 32, struct.pack("<Q", 2 * FILE_BYTES),
                f"{FILE_BYTES} bytes", f"{2 * FILE_BYTES} bytes",
            ),
        ],
    )  # fmt: skip
    def test_each_field_that_differs_is_named_with_what_was_found_and_expected(
        self,
        path: Path,
        opener: Opener,
        pristine: bytes,
        field: str,
        offset: int,
        piece: bytes,
        found: object,
        expected: object,
    ) -> None:
        path.write_bytes(resealed(patched(pristine, offset, piece)))
        with pytest.raises(LayoutError) as raised:
            opener(path)
        error = raised.value
        assert (error.path, error.field, error.found, error.expected) == (path, field, found, expected)
        assert str(error) == f"{path}: {field} must be {expected}, was {found}"

    def test_header_of_a_machine_with_the_other_byte_order_is_refused(
        self, path: Path, pristine: bytes
    ) -> None:
        """All numbers swapped, as such a machine would have written them; the checksum as well."""
        fields = struct.unpack("<8sQ8sIIQQqII8q64s", pristine[:192])
        path.write_bytes(struct.pack(">8sQ8sIIQQqII8q64s", *fields) + pristine[192:])
        with pytest.raises(LayoutError, match=r"byte order mark must be 0x0102.*, was 0x0807"):
            open_file(path, LAYOUT, is_writable=True)

    @given(position=st.integers(0, HEADER_BYTES - 1), bits=st.integers(1, 255))
    def test_any_changed_byte_of_the_header_is_noticed(
        self, position: int, bits: int, tmp_path_factory: pytest.TempPathFactory, pristine: bytes
    ) -> None:
        path = tmp_path_factory.getbasetemp() / "changed-byte"
        path.write_bytes(patched(pristine, position, bytes([pristine[position] ^ bits])))
        with pytest.raises(LayoutError):
            open_file(path, LAYOUT, is_writable=True)

    @given(length=st.integers(0, FILE_BYTES - 1) | st.sampled_from([0, 1, 191, 192, 4095, 4096, 4097]))
    def test_file_cut_off_anywhere_is_refused_by_its_size(
        self, length: int, tmp_path_factory: pytest.TempPathFactory, pristine: bytes
    ) -> None:
        path = tmp_path_factory.getbasetemp() / "cut"
        path.write_bytes(pristine[:length])
        with pytest.raises(LayoutError) as raised:
            open_file(path, LAYOUT, is_writable=True)
        assert raised.value.field == "file size"
        assert raised.value.found == f"{length} bytes"

    def test_file_that_grew_is_refused(self, path: Path, pristine: bytes) -> None:
        path.write_bytes(pristine + bytes(mmap.PAGESIZE))
        with pytest.raises(LayoutError, match="file size must be"):
            open_file(path, LAYOUT, is_writable=False)

    @given(data=st.binary(max_size=200), fill=st.integers(0, 255), length=st.integers(0, FILE_BYTES))
    def test_random_bytes_are_refused(
        self, data: bytes, fill: int, length: int, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        path = tmp_path_factory.getbasetemp() / "random"
        path.write_bytes((data + bytes([fill]) * length)[:FILE_BYTES])
        with pytest.raises(LayoutError):
            open_file(path, LAYOUT, is_writable=True)

    @given(
        offset=st.sampled_from(range(0, 192, 8)),
        value=st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 4096, 4097, 2**40 + 4096, 2**63]),
        length=st.integers(0, 3 * HEADER_BYTES),
    )
    def test_header_with_a_fitting_checksum_is_not_believed_for_it(
        self,
        offset: int,
        value: int,
        length: int,
        tmp_path_factory: pytest.TempPathFactory,
        pristine: bytes,
    ) -> None:
        """A liar's file: opened if what it says is consistent, refused otherwise, and nothing else ever."""
        path = tmp_path_factory.getbasetemp() / "liar"
        data = patched(pristine, offset, struct.pack("<Q", value))
        if len(data) > length >= HEADER_BYTES:
            data = patched(data[:length], 32, struct.pack("<Q", length))
        path.write_bytes(resealed(data))
        try:
            file = open_file(path, LAYOUT, is_writable=True)
        except LayoutError:
            return
        assert file.words.size * 8 == path.stat().st_size
        assert file.header.file_bytes % mmap.PAGESIZE == 0

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else for a moment")
    def test_file_of_another_user_is_a_permission_error(self, tmp_path: Path) -> None:
        make(tmp_path / "file")
        program = (
            "import os, sys; from pathlib import Path; from middleware.shm import mapping;"
            "from middleware.shm.errors import PermissionsError;"
            "directory = os.open(sys.argv[1], os.O_RDONLY); os.fchdir(directory);"
            "os.setgroups([]); os.setgid(65534); os.setuid(65534);"
            "layout = mapping.Layout('test', 3, ('slot_count', 'slot_bytes'))\n"
            "try: mapping.open_file(Path('file'), layout, is_writable=False)\n"
            "except PermissionsError as error: print(error)"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
        )
        assert done.stdout == "cannot open file: Permission denied\n"

    def test_file_that_may_not_be_written_to_is_refused(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What anybody but root gets from the system, whom it refuses nothing."""
        make(path)
        real_open = os.open

        def refuse(name: Path, flags: int, mode: int = 0o777) -> int:
            if flags & os.O_RDWR:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return real_open(name, flags, mode)

        monkeypatch.setattr(os, "open", refuse)
        with pytest.raises(PermissionsError, match="Permission denied"):
            open_file(path, LAYOUT, is_writable=True)
        assert open_file(path, LAYOUT, is_writable=False).header.name == "spy"


class TestFailingSystem:
    def test_file_beyond_the_limit_of_the_process_is_an_error_and_leaves_nothing(self, path: Path) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (HEADER_BYTES + mmap.PAGESIZE, hard))
        try:
            with pytest.raises(ShmError, match=rf"cannot make .* of {FILE_BYTES} bytes: File too large"):
                make(path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert not names_in(path.parent)

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
    def test_full_memory_is_a_clear_error_and_leaves_nothing(self, tmp_path: Path) -> None:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)],
            capture_output=True,
            check=False,
        )
        if mounted.returncode != 0:
            pytest.skip(f"cannot mount: {mounted.stderr.decode().strip()}")
        try:
            with pytest.raises(ShmError, match=r"cannot make .*: No space left on device"):
                create(tmp_path / "file", LAYOUT, "spy", GEOMETRY, 1 << 20, 0o600)
            assert not names_in(tmp_path)
            create(tmp_path / "file", LAYOUT, "spy", GEOMETRY, BODY_BYTES, 0o600)  # the space is free again
        finally:
            subprocess.run(["umount", "-l", str(tmp_path)], check=True)

    def test_file_that_cannot_be_mapped_is_a_clear_error(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        make(path)

        def refuse(*_arguments: object, **_options: object) -> object:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

        open_before = len(names_in(Path("/proc/self/fd")))
        monkeypatch.setattr(mmap, "mmap", refuse)
        with pytest.raises(ShmError, match=r"cannot map .*: Cannot allocate memory"):
            open_file(path, LAYOUT, is_writable=True)
        assert len(names_in(Path("/proc/self/fd"))) == open_before

    def test_refused_files_are_closed_again(self, path: Path) -> None:
        path.write_bytes(b"x")
        open_before = len(names_in(Path("/proc/self/fd")))
        for _ in range(5):
            with pytest.raises(LayoutError):
                open_file(path, LAYOUT, is_writable=True)
            with pytest.raises(LayoutError):
                read_header(path, LAYOUT)
        assert len(names_in(Path("/proc/self/fd"))) == open_before


DYING_MAKER = """
import os, signal, sys
from pathlib import Path
from middleware.shm import mapping
def die(*arguments): os.kill(os.getpid(), signal.SIGKILL)
def pause(*arguments): print("making", flush=True); sys.stdin.read()
os.link = {"die": die, "pause": pause}[sys.argv[2]]
mapping.create(Path(sys.argv[1]) / "file", mapping.Layout("test", 1, ()), "x", {}, 4096, 0o600)
"""


class TestScratch:
    def test_what_a_killed_maker_left_is_removed(self, tmp_path: Path) -> None:
        subprocess.run([sys.executable, "-c", DYING_MAKER, str(tmp_path), "die"], check=False)
        left = names_in(tmp_path)
        assert len(left) == 1
        assert left[0].startswith(mapping.SCRATCH_PREFIX)

        assert remove_scratch(tmp_path) == left
        assert not names_in(tmp_path)

    def test_what_is_being_made_is_left_alone(self, tmp_path: Path) -> None:
        maker = subprocess.Popen(
            [sys.executable, "-c", DYING_MAKER, str(tmp_path), "pause"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            assert maker.stdout is not None
            assert maker.stdout.readline() == b"making\n"
            assert remove_scratch(tmp_path) == []
            assert len(names_in(tmp_path)) == 1
        finally:
            maker.kill()
            maker.communicate()
        assert len(remove_scratch(tmp_path)) == 1

    def test_scratch_removed_before_it_was_locked_is_made_again(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The narrow moment between making the file and locking it."""
        real_open = os.open
        removals: list[str] = []

        def open_and_lose(name: Path, flags: int, mode: int = 0o777) -> int:
            fd = real_open(name, flags, mode)
            if flags & os.O_CREAT and not removals:
                removals.extend(remove_scratch(path.parent))
            return fd

        monkeypatch.setattr(os, "open", open_and_lose)
        file = make(path)

        assert len(removals) == 1
        assert file.header.name == "spy"
        assert names_in(path.parent) == ["file"]

    def test_only_scratch_files_are_removed(self, tmp_path: Path) -> None:
        make(tmp_path / "file")
        (tmp_path / f"{mapping.SCRATCH_PREFIX}directory").mkdir()
        (tmp_path / f"{mapping.SCRATCH_PREFIX}link").symlink_to(tmp_path / "file")
        before = names_in(tmp_path)

        assert remove_scratch(tmp_path) == []
        assert names_in(tmp_path) == before
