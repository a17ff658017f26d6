"""Draws a part of a trace as an SVG: python3 benches/draw_trace.py TRACE FROM_US TO_US SVG

Reads the Perfetto trace as protobuf: packets (field 1) with a timestamp in ns (8), an event (11) of a type (9; 1 begins a slice, 2 ends it)
on a track (11) with a name (23), or a track's descriptor (60: uuid 1, name 2, parent 5). Times are from the first slice on.
"""

import html
import sys
from collections import defaultdict

WIDTH, LEFT, RIGHT, ROW, HEAD = 1000, 240, 24, 18, 26
COLOURS = {"kernel": "#4f7cac", "copy": "#c8553d", "fill": "#8f8f8f", "wait": "#c9a227"}
STYLE = (
    "text{font:11px sans-serif;fill:#222}.a{stroke:#ccc}.b{fill:#fff}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.a{stroke:#444}.b{fill:#181818}}"
)


def fields(data):
    """Yields number and value of each field of a message."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        number, kind = key >> 3, key & 7
        if kind == 0:
            yield number, varint()
            continue
        length = {1: 8, 5: 4}.get(kind)
        length = varint() if length is None else length
        yield number, data[at : at + length]
        at += length


def message(data):
    found = defaultdict(list)
    for number, value in fields(data):
        found[number].append(value)
    return found


def read(path):
    """Returns the tracks by uuid, as name and parent, and the slices, as track, begin and end in ns, and name."""
    tracks, slices, begun = {}, [], defaultdict(list)
    events = []
    for number, data in fields(open(path, "rb").read()):
        if number != 1:
            continue
        packet = message(data)
        for descriptor in packet[60]:
            of = message(descriptor)
            tracks[of[1][0]] = (of[2][0].decode() if of[2] else "", (of[5] or [0])[0])
        for event in packet[11]:
            of = message(event)
            events.append((packet[8][0], (of[9] or [0])[0], (of[11] or [0])[0], (of[23] or [b""])[0].decode()))
    # Ends come before begins of the same instant.
    for at, kind, track, name in sorted(events, key=lambda event: (event[0], -event[1])):
        if kind == 1:
            begun[track].append((at, name))
        elif kind == 2 and begun[track]:
            begin, name = begun[track].pop()
            slices.append((track, begin, at, name))
    return tracks, slices


def draw(tracks, slices, begin, end):
    first = min(slice[1] for slice in slices)
    shown = [(t, (b - first) / 1e3, (e - first) / 1e3, n) for t, b, e, n in slices]
    shown = [slice for slice in shown if slice[2] > begin and slice[1] < end]
    rows = [uuid for uuid in tracks if any(slice[0] == uuid for slice in shown)]
    # A slice within another is drawn beneath it.
    depth, tops, deepest = {}, {}, HEAD
    for uuid in rows:
        open_until, levels = [], 1
        for slice in sorted((slice for slice in shown if slice[0] == uuid), key=lambda slice: (slice[1], -slice[2])):
            open_until = [end for end in open_until if end > slice[1]]
            depth[slice] = len(open_until)
            open_until.append(slice[2])
            levels = max(levels, len(open_until))
        tops[uuid], deepest = deepest, deepest + ROW * levels
    height = deepest + 8
    x = lambda us: LEFT + (min(max(us, begin), end) - begin) / (end - begin) * (WIDTH - LEFT - RIGHT)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"><style>{STYLE}</style>',
        f'<rect class="b" width="{WIDTH}" height="{height}"/>',
    ]
    for tick in range(11):
        us = begin + (end - begin) * tick / 10
        out.append(f'<path class="a" d="M{x(us):.1f} {HEAD - 6}V{height}"/>')
        out.append(f'<text x="{x(us):.1f}" y="14" text-anchor="middle">{us:g}{" µs" if tick == 0 else ""}</text>')
    for uuid in rows:
        top = tops[uuid]
        out.append(f'<text x="{LEFT - 8}" y="{top + 12}" text-anchor="end">{html.escape(tracks[uuid][0])}</text>')
        for slice in sorted(slice for slice in shown if slice[0] == uuid):
            _, b, e, name = slice
            top = tops[uuid] + ROW * depth[slice]
            width = max(x(e) - x(b), 0.8)
            colour = COLOURS.get(name.split()[0], "#6a9a5b")
            out.append(
                f'<rect x="{x(b):.1f}" y="{top}" width="{width:.1f}" height="{ROW - 4}" fill="{colour}">'
                f"<title>{html.escape(name)}: {b:.1f} to {e:.1f} µs</title></rect>"
            )
            if width > 7 * len(name) + 6:
                out.append(f'<text x="{x(b) + 3:.1f}" y="{top + 11}" style="fill:#fff">{html.escape(name)}</text>')
    return "\n".join(out) + "\n</svg>\n"


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    trace, begin, end, out = sys.argv[1:]
    tracks, slices = read(trace)
    with open(out, "w", encoding="utf-8") as file:
        file.write(draw(tracks, slices, float(begin), float(end)))


main()
