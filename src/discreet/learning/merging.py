"""Merges taps of the same weight. A tap holds what the per-example gradients of one use of a weight are
computed from (`taps`). A weight that is used twice has one gradient, the sum of both, whose norm does not
follow from the norms of its summands."""

from __future__ import annotations

import itertools

import torch

from .taps import Key, Lookup, Outer, ProductTap, Rows, Tap, Target, Tied, flat_rows, without_bias


def merged(taps: list[Tap]) -> list[Tap]:
    """Return taps with the same sums of gradients, such that no two of them share an entry of a parameter.

    A tap's target is a parameter, or a range of its rows.

    Guarantee: for each example, the squared norms of the taps' gradients add up to the squared norm of the
               whole gradient.
    Proof:     taps of equal targets are merged into one. Targets of one parameter that overlap without being
               equal (attention projects queries, keys and values together in one call, each by itself in
               another) are split at every row where one of them begins or ends, before taps are merged. Then
               any two targets are equal or have no entry in common, so that the gradients of different taps
               are orthogonal.
    """
    targets = [target for tap in taps for target in (tap.target, tap.bias) if target is not None]
    if not _overlap(targets):
        return taps
    # The rows where a target begins or ends, by the parameter's id.
    boundaries: dict[int, set[int]] = {}
    for target in targets:
        boundaries.setdefault(id(target.parameter), set()).update(target.span)
    taps = [
        piece
        for tap in taps
        for part in without_bias(tap)
        for piece in _split_rows(part, boundaries[id(part.target.parameter)])
    ]
    by_target: dict[Key, list[Tap]] = {}
    for tap in taps:
        by_target.setdefault(tap.target.key, []).append(tap)
    return [group[0] if len(group) == 1 else _merge_group(group) for group in by_target.values()]


def _overlap(targets: list[Target]) -> bool:
    """Return whether two of the targets have an entry in common."""
    spans: dict[int, list[tuple[int, int]]] = {}
    for target in targets:
        spans.setdefault(id(target.parameter), []).append(target.span)
    shared = (sorted(ranges) for ranges in spans.values() if len(ranges) > 1)
    return any(a[1] > b[0] for ranges in shared for a, b in itertools.pairwise(ranges))


def _split_rows(tap: Tap, boundaries: set[int]) -> list[Tap]:
    """Return a tap as several, split at those rows in `boundaries` that are inside its target."""
    begin, end = tap.target.span
    edges = [begin, *sorted(row for row in boundaries if begin < row < end), end]
    if len(edges) == 2:
        return [tap]
    # `rows` counts within the tap, from 0; `targets` have rows of the parameter.
    rows = [slice(a - begin, b - begin) for a, b in itertools.pairwise(edges)]
    targets = [Target(tap.target.parameter, pair) for pair in itertools.pairwise(edges)]
    if isinstance(tap, Outer):
        return [Outer(target, tap.x, tap.g[:, part]) for target, part in zip(targets, rows, strict=True)]
    if isinstance(tap, ProductTap):
        return [
            ProductTap(target, tap.x, tap.g[:, :, part], positions=tap.positions)
            for target, part in zip(targets, rows, strict=True)
        ]
    built = tap.built()
    built = built.reshape(len(built), *tap.target.parameter[begin:end].shape)
    return [Rows(target, built[:, part]) for target, part in zip(targets, rows, strict=True)]


def _merge_group(group: list[Tap]) -> Tap:
    """Return one tap for several taps of the same target.

    Products and lookups are merged by concatenating their positions; a product and a lookup (an embedding
    that is also the output layer) become a `Tied`. With any other kind of tap, gradients are built and added.
    """
    target = group[0].target
    products = [_as_product(tap) for tap in group if isinstance(tap, Outer | ProductTap)]
    lookups = [tap for tap in group if isinstance(tap, Lookup)]
    if len(products) + len(lookups) < len(group):
        return Rows(target, torch.stack([flat_rows(tap.built()) for tap in group]).sum(0))
    matrix = _concatenated(target, products) if products else None
    table = (
        Lookup(
            target,
            torch.cat([tap.ids for tap in lookups], 1),
            torch.cat([tap.g for tap in lookups], 1),
            sum(tap.ids.shape[1] if tap.positions is None else tap.positions for tap in lookups),
        )
        if lookups
        else None
    )
    if matrix is not None and table is not None:
        return Tied(table, matrix)
    return matrix if matrix is not None else table  # type: ignore[return-value]


def _concatenated(target: Target, products: list[ProductTap]) -> ProductTap:
    """Return one product over the positions of all these products."""
    positions = sum(tap.x.shape[1] if tap.positions is None else tap.positions for tap in products)
    x, g = torch.cat([tap.x for tap in products], 1), torch.cat([tap.g for tap in products], 1)
    return ProductTap(target, x, g, positions=positions)


def _as_product(tap: Outer | ProductTap) -> ProductTap:
    """Return an `Outer`, which has no dimension for positions, as a product with one position."""
    return (
        tap if isinstance(tap, ProductTap) else ProductTap(tap.target, tap.x.unsqueeze(1), tap.g.unsqueeze(1))
    )
