#!/usr/bin/env python3
"""Expected values and gradients of Fourier transforms: writes ops_fft.h5 beside this file.

Run with torch 2.15.0, numpy 2.4.6, h5py 3.16.0; see README.md. cases.py says what a case is.
"""

import torch

from cases import case, normal, write

# Powers of 2, products of other small primes, primes with a step of their own (up to 47) and beyond, alone and doubled.
LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 30, 32, 47, 49, 53, 60, 64, 94, 106, 131, 240, 1000)


def parts(z):
    return z.real, z.imag


def inner(n, frequencies, factor):
    """1 for the frequencies 0 and n / 2, and a factor for all others."""
    return torch.tensor([1.0 if k == 0 or 2 * k == n else factor for k in range(frequencies)], dtype=torch.float64)


def fft(re, im=None, inverse=False, scale=None):
    z = torch.complex(re, torch.zeros_like(re) if im is None else im)
    if not inverse:
        return parts(torch.fft.fft(z) * (1 if scale is None else scale))
    return parts(torch.fft.ifft(z) * (1 if scale is None else scale * re.shape[-1]))


def rfft(x, n=None, frequencies=None, scale=1, factor=1):
    n = n or x.shape[-1]
    return parts((torch.fft.rfft(x, n) * scale * inner(n, n // 2 + 1, factor))[..., :frequencies])


def irfft(re, im=None, n=None, size=None, scale=None, factor=2):
    n = n or 2 * (re.shape[-1] - 1)
    z = torch.complex(re, torch.zeros_like(re) if im is None else im) * inner(n, re.shape[-1], factor / 2)
    x = torch.fft.irfft(z, n) * (1 if scale is None else scale * n)
    return torch.nn.functional.pad(x, (0, max(0, (size or n) - n)))[..., : size or n]


def length_cases():
    for n in LENGTHS:
        name, m = f"{n}", n // 2 + 1
        rows = 11 if n in (12, 15, 53, 64) else 1  # more than are transformed together, or one
        case("fft." + name, [normal("re" + name, rows, n), normal("im" + name, rows, n)], fft)
        case("fft.back_" + name, [normal("re" + name, rows, n), normal("im" + name, rows, n)],
             lambda a, b: fft(a, b, inverse=True), {"inverse": True})
        case("rfft." + name, [normal("x" + name, rows, n)], rfft)
        case("irfft." + name, [normal("re" + name, rows, m), normal("im" + name, rows, m)],
             lambda a, b, n=n: irfft(a, b, n), {"n": n})


def option_cases():
    a, b, x = normal("a", 2, 5, 10), normal("b", 2, 5, 10), normal("x", 2, 5, 10)
    case("fft.real", [a], fft)
    case("fft.vector", [normal("v", 6), normal("w", 6)], fft)
    case("fft.none", [normal("none", 0, 6), normal("none", 0, 6)], fft)
    case("fft.scale", [a, b], lambda a, b: fft(a, b, scale=0.5), {"scale": 0.5})
    case("fft.back_scale", [a, b], lambda a, b: fft(a, b, True, 0.5), {"inverse": True, "scale": 0.5})
    case("rfft.cut", [x], lambda x: rfft(x, 7), {"n": 7})
    case("rfft.cut_even", [x], lambda x: rfft(x, 6), {"n": 6})
    case("rfft.longer", [x], lambda x: rfft(x, 20), {"n": 20})
    case("rfft.longer_odd", [x], lambda x: rfft(x, 53), {"n": 53})
    case("rfft.some", [x], lambda x: rfft(x, frequencies=3), {"frequencies": 3})
    case("rfft.factors", [x], lambda x: rfft(x, scale=0.3, factor=3), {"scale": 0.3, "inner": 3})
    case("irfft.default", [a, b], irfft)
    case("irfft.real", [a], irfft)
    case("irfft.missing", [a, b], lambda a, b: irfft(a, b, 40), {"n": 40})
    case("irfft.missing_odd", [a, b], lambda a, b: irfft(a, b, 33), {"n": 33})
    case("irfft.cut", [a, b], lambda a, b: irfft(a, b, size=7), {"size": 7})
    case("irfft.longer", [a, b], lambda a, b: irfft(a, b, size=21), {"size": 21})
    case("irfft.factors", [a, b], lambda a, b: irfft(a, b, scale=0.3, factor=3), {"scale": 0.3, "inner": 3})


length_cases()
option_cases()
write("ops_fft.h5")
