#!/usr/bin/env python3
"""Remakes gaussian_epsilon.json, which the accountant of differential privacy is compared with. Standard library only.

    make_gaussian_epsilon.py FILE

`renyi` is what Opacus' and dp-accounting's RDP accountants compute for a Gaussian mechanism without sampling: rounds times
alpha / (2 z^2) at every order, converted by theorem 21 of Balle et al. 2020 and minimised over the orders. `exact` is the
least epsilon there is, from the analytic Gaussian mechanism (Balle and Wang 2018, theorem 8): rounds compose to one
mechanism with the noise multiplier z / sqrt(rounds).
"""
import json
import math
import sys

# Opacus' default orders, and powers of two for much noise.
ORDERS = [1 + x / 10 for x in range(1, 100)] + list(range(11, 64)) + [2.0**x for x in range(6, 21)]


def renyi(z, rounds, delta):
    def at(order):
        rdp = rounds * order / (2 * z * z)
        return rdp + math.log((order - 1) / order) - (math.log(delta) + math.log(order)) / (order - 1)
    return max(0.0, min(map(at, ORDERS)))


def log_phi(x):
    """Logarithm of the normal distribution function."""
    if x > -30:
        return math.log(0.5 * math.erfc(-x / math.sqrt(2)))
    return -x * x / 2 - math.log(-x * math.sqrt(2 * math.pi)) + math.log1p(-1 / (x * x))


def exact(z, rounds, delta):
    sigma = z / math.sqrt(rounds)

    def delta_of(epsilon):
        a, b = 1 / (2 * sigma) - epsilon * sigma, -1 / (2 * sigma) - epsilon * sigma
        return math.exp(log_phi(a)) - math.exp(epsilon + log_phi(b))

    low, high = 0.0, 1.0
    if delta_of(low) <= delta:
        return 0.0
    while delta_of(high) > delta:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle) > delta else (low, middle)
    return low


def main():
    cases = [(z, rounds, delta) for z in (0.5, 1.0, 1.1, 2.0, 4.0, 16.0)
             for rounds in (1, 10, 100, 1000) for delta in (1e-5, 1e-7)]
    known = [{"noise_multiplier": z, "rounds": rounds, "delta": delta,
              "renyi": renyi(z, rounds, delta), "exact": exact(z, rounds, delta)} for z, rounds, delta in cases]
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump(known, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
