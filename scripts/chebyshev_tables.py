"""Writes torchtpu/lowering/bessel_tables.py: Chebyshev series fitted here with mpmath, to double precision.

    python scripts/chebyshev_tables.py > torchtpu/lowering/bessel_tables.py
"""

from __future__ import annotations

import mpmath as mp

mp.mp.dps = 60


def series(f, low, high, points=72, tail=1e-18):
    """Chebyshev coefficients of f over [low, high], cut where they no longer count."""
    nodes = [mp.cos(mp.pi * (k + mp.mpf(1) / 2) / points) for k in range(points)]
    values = [f((high - low) * t / 2 + (mp.mpf(high) + low) / 2) for t in nodes]
    out = []
    for j in range(points):
        total = sum(v * mp.cos(mp.pi * j * (k + mp.mpf(1) / 2) / points) for k, v in enumerate(values))
        out.append(total * (1 if j == 0 else 2) / points)
    top = max(abs(c) for c in out)
    while len(out) > 1 and abs(out[-1]) < tail * top:
        out.pop()
    return [float(c) for c in out]


def hankel(order, part):
    """P or Q of the Hankel expansion as a function of s = (8 / x)^2 (Q without its factor 8 / x)."""

    def value(s):
        s = max(s, mp.mpf("1e-9"))
        x = 8 / mp.sqrt(s)
        chi = x - (2 * order + 1) * mp.pi / 4
        j, y = mp.besselj(order, x), mp.bessely(order, x)
        scale = mp.sqrt(mp.pi * x / 2)
        p = scale * (j * mp.cos(chi) + y * mp.sin(chi))
        q = scale * (y * mp.cos(chi) - j * mp.sin(chi))
        return p if part == "p" else q * x / 8

    return value


def root(s):
    return mp.sqrt(max(s, mp.mpf("1e-30")))


def j_small(order):
    return lambda s: mp.besselj(order, root(s)) / (root(s) if order else 1)


def y_small(order):
    """What is left of Y without its logarithm (and pole), as a function of x^2."""

    def value(s):
        x = root(s)
        rest = mp.bessely(order, x) - 2 / mp.pi * mp.log(x) * mp.besselj(order, x)
        return rest if order == 0 else (rest + 2 / (mp.pi * x)) / x

    return value


def k_small(order):
    def value(s):
        x = root(s)
        log = mp.log(x / 2)
        if order == 0:
            return mp.besselk(0, x) + log * mp.besseli(0, x)
        return (mp.besselk(1, x) - log * mp.besseli(1, x) - 1 / x) / x

    return value


def k_large(order):
    def value(u):
        u = max(u, mp.mpf("1e-9"))
        return mp.besselk(order, 1 / u) * mp.exp(1 / u) / mp.sqrt(u)

    return value


def airy_right(u):
    """As a function of 1 / zeta, zeta = 2/3 x^(3/2)."""
    zeta = 1 / max(u, mp.mpf("1e-6"))
    x = (zeta * 3 / 2) ** (mp.mpf(2) / 3)
    return mp.airyai(x) * mp.exp(zeta) * x ** (mp.mpf(1) / 4)


def airy_left(part):
    """Modulus parts at -x as functions of 1 / zeta^2 (the sine part without its factor 1 / zeta)."""

    def value(s):
        zeta = 1 / mp.sqrt(max(s, mp.mpf("1e-9")))
        x = (zeta * 3 / 2) ** (mp.mpf(2) / 3)
        a, b = mp.airyai(-x), mp.airybi(-x)
        scale = mp.sqrt(mp.pi) * x ** (mp.mpf(1) / 4)
        chi = zeta - mp.pi / 4
        # Ai = cos·p + sin·q and Bi = -sin·p + cos·q
        p = scale * (a * mp.cos(chi) - b * mp.sin(chi))
        q = scale * (a * mp.sin(chi) + b * mp.cos(chi))
        return p if part == "p" else q * zeta

    return value


def main():
    tables = {}
    for order in (0, 1):
        tables[f"J{order}_SMALL"] = series(j_small(order), 0, 64)
        tables[f"Y{order}_SMALL"] = series(y_small(order), 0, 64)
        tables[f"HANKEL{order}_P"] = series(hankel(order, "p"), 0, 1)
        tables[f"HANKEL{order}_Q"] = series(hankel(order, "q"), 0, 1)
        tables[f"K{order}_SMALL"] = series(k_small(order), 0, 4)
        tables[f"K{order}_LARGE"] = series(k_large(order), 0, mp.mpf(1) / 2)
    low = mp.mpf(2) / 3 * mp.mpf(2) ** mp.mpf("1.5")
    tables["AIRY_RIGHT"] = series(airy_right, 0, 1 / low)
    tables["AIRY_MIDDLE"] = series(mp.airyai, -4, 2)
    tables["AIRY_LEFT_P"] = series(airy_left("p"), 0, (mp.mpf(3) / 16) ** 2)
    tables["AIRY_LEFT_Q"] = series(airy_left("q"), 0, (mp.mpf(3) / 16) ** 2)
    print('"""Chebyshev coefficients for bessel.py, written by scripts/chebyshev_tables.py."""\n')
    for name, values in tables.items():
        print(f"{name} = (")
        for value in values:
            print(f"    {value!r},")
        print(")")


if __name__ == "__main__":
    main()
