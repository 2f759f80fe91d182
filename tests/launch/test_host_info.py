from titanrun.launch.host_info import format_gib_or_unknown, read_cpu_info, read_memory_info

X86 = "processor\t: 0\nmodel name\t: A Xeon\nflags\t\t: fpu avx2 avx512_bf16 amx_bf16\n\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd bf16 sve\n"


def test_bf16_arithmetic_is_read_from_the_flags() -> None:
    assert read_cpu_info(X86).model == "A Xeon"
    assert read_cpu_info(X86).bf16 == ("amx_bf16", "avx512_bf16")
    assert read_cpu_info(ARM).bf16 == ("bf16",)
    assert not read_cpu_info(X86).emulates_bf16 and not read_cpu_info("").emulates_bf16
    plain = X86.replace("_bf16", "")
    assert read_cpu_info(plain).bf16 == () and read_cpu_info(plain).emulates_bf16
    # PyTorch multiplies with AVX-512 too
    wide = plain.replace("avx2", "avx2 avx512bw avx512dq avx512vl")
    assert read_cpu_info(wide).bf16 == () and not read_cpu_info(wide).emulates_bf16
    assert read_cpu_info("").bf16 is None
    assert read_cpu_info().cores >= 1


def test_memory_is_read_in_bytes() -> None:
    found = read_memory_info("MemTotal:        2097152 kB\nMemAvailable:    1048576 kB\n")
    assert (format_gib_or_unknown(found.total), format_gib_or_unknown(found.available)) == (
        "2.0 GiB",
        "1.0 GiB",
    )
    assert read_memory_info("").total is None
    assert format_gib_or_unknown(None) == "unknown"
