from titanrun.launch.machine import in_gib, memory, processor

X86 = "processor\t: 0\nmodel name\t: A Xeon\nflags\t\t: fpu avx2 avx512_bf16 amx_bf16\n\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd bf16 sve\n"


def test_bf16_arithmetic_is_read_from_the_flags() -> None:
    assert processor(X86).model == "A Xeon"
    assert processor(X86).bf16 == ("amx_bf16", "avx512_bf16")
    assert processor(ARM).bf16 == ("bf16",)
    assert processor(X86.replace("_bf16", "")).bf16 == ()
    assert processor("").bf16 is None
    assert processor().cores >= 1


def test_memory_is_read_in_bytes() -> None:
    found = memory("MemTotal:        2097152 kB\nMemAvailable:    1048576 kB\n")
    assert (in_gib(found.total), in_gib(found.available)) == ("2.0 GiB", "1.0 GiB")
    assert memory("").total is None
    assert in_gib(None) == "unknown"
