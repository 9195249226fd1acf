"""Pictures as SVG. They look like those of `lockstep bench` (src/bench/plot.cpp)."""
import dataclasses
import html
import math

# Colours that colour-blind people can tell apart (Okabe and Ito).
COLOURS = ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9"]
INK, FAINT = "#303030", "#dcdcdc"
WIDTH, ROW, RIGHT = 860, 34, 90


@dataclasses.dataclass
class Row:
    name: str
    value: float
    low: float
    high: float


@dataclasses.dataclass
class Line:
    name: str
    points: list[tuple[float, Row]]
    flat: bool = False  # one value at every place: dashed, with its range as a band


class Canvas:
    def __init__(self, height: float, title: str):
        self.height = height
        self.body = [f'<rect width="{WIDTH}" height="{height:g}" fill="#ffffff"/>']
        self.text(16, 26, title, size=15)

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str = INK, width: float = 1.4,
             dashed: bool = False) -> None:
        dashes = ' stroke-dasharray="6 4"' if dashed else ""
        self.body.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
                         f'stroke-width="{width:g}"{dashes}/>')

    def box(self, x: float, y: float, width: float, height: float, colour: str, opacity: float = 1) -> None:
        self.body.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="2" fill="{colour}" '
                         f'fill-opacity="{opacity:g}"/>')

    def dot(self, x: float, y: float, colour: str) -> None:
        self.body.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>')

    def text(self, x: float, y: float, words: str, anchor: str = "start", size: int = 12) -> None:
        self.body.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{html.escape(words)}</text>')

    def finished(self) -> str:
        return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{self.height:g}" viewBox="0 0 {WIDTH} '
                f'{self.height:g}" font-family="system-ui, sans-serif" fill="{INK}">\n' + "\n".join(self.body) + "\n</svg>\n")


class Axis:
    """Numbers between two places on paper, with lines at round ones."""

    def __init__(self, values: list[float], begin: float, end: float, from_zero: bool = False):
        low, high = (0 if from_zero else min(values)), max(values)
        spread = max(high - low, abs(high) / 50, 1e-9)
        power = 10 ** math.floor(math.log10(spread))
        self.step = next(power * part for part in (0.2, 0.5, 1) if spread / (power * part) <= 10)
        self.low = math.floor(low / self.step) * self.step
        self.high = max(math.ceil(high / self.step) * self.step, self.low + self.step)
        self.begin, self.end = begin, end

    def at(self, value: float) -> float:
        return self.begin + (value - self.low) / (self.high - self.low) * (self.end - self.begin)

    def marks(self) -> list[float]:
        return [self.low + i * self.step for i in range(round((self.high - self.low) / self.step) + 1)]


def ranges(title: str, caption: str, rows: list[Row], bars: bool = False) -> str:
    """A row for each: a dot, or a bar from 0, with the range of its values."""
    top, left = 46, 40 + 6.6 * max(len(row.name) for row in rows)
    bottom = top + ROW * len(rows)
    canvas = Canvas(bottom + 50, title)
    x = Axis([row.low for row in rows] + [row.high for row in rows], left, WIDTH - RIGHT, bars)
    for mark in x.marks():
        canvas.line(x.at(mark), top, x.at(mark), bottom, FAINT, 1)
        canvas.text(x.at(mark), bottom + 17, f"{mark:g}" if abs(mark) < 1e-9 else f"{mark:.6g}", "middle", 11)
    canvas.text((x.begin + x.end) / 2, bottom + 38, caption, "middle")
    for number, row in enumerate(rows):
        middle = top + ROW * (number + 0.5)
        canvas.text(left - 10, middle + 4, row.name, "end")
        if bars:
            canvas.box(left, middle - 10, x.at(row.value) - left, 20, COLOURS[0])
        else:
            canvas.dot(x.at(row.value), middle, COLOURS[0])
        canvas.line(x.at(row.low), middle, x.at(row.high), middle)
        for end in (row.low, row.high):
            canvas.line(x.at(end), middle - 5, x.at(end), middle + 5)
        canvas.text(x.at(row.high) + 8, middle + 4, f"{row.value:.2f}")
    return canvas.finished()


def lines(title: str, caption: str, all_lines: list[Line]) -> str:
    """Lines over powers of two, with the range of each point; their names are below."""
    all_lines = [line for line in all_lines if line.points]
    top, bottom, left = 50, 390, 70
    places = sorted({place for line in all_lines for place, _ in line.points})
    canvas = Canvas(bottom + 60 + 20 * len(all_lines), title)
    rows = [row for line in all_lines for _, row in line.points]
    y = Axis([row.low for row in rows] + [row.high for row in rows], bottom, top)
    for mark in y.marks():
        canvas.line(left, y.at(mark), WIDTH - RIGHT, y.at(mark), FAINT, 1)
        canvas.text(left - 8, y.at(mark) + 4, f"{mark:.6g}", "end", 11)
    across = {place: left + 20 + (WIDTH - RIGHT - left - 40) * i / max(len(places) - 1, 1) for i, place in enumerate(places)}
    for place, at in across.items():
        canvas.text(at, bottom + 18, f"{place:g}", "middle", 11)
    canvas.text((left + WIDTH - RIGHT) / 2, bottom + 38, caption, "middle")
    for number, line in enumerate(all_lines):
        # Ranges stand beside each other.
        aside = {place: at + 5 * (number - len(all_lines) / 2) for place, at in across.items()}
        draw_line(canvas, line, COLOURS[number % len(COLOURS)], across if line.flat else aside, y)
        height = bottom + 58 + 20 * number
        canvas.line(left, height, left + 24, height, COLOURS[number % len(COLOURS)], 2.2, line.flat)
        canvas.text(left + 32, height + 4, line.name)
    return canvas.finished()


def draw_line(canvas: Canvas, line: Line, colour: str, across: dict[float, float], y: Axis) -> None:
    places = [(across[place], row) for place, row in line.points]
    if line.flat:
        row = line.points[0][1]
        begin, end = min(across.values()), max(across.values())
        canvas.box(begin, y.at(row.high), end - begin, y.at(row.low) - y.at(row.high), colour, 0.15)
    for (x1, row1), (x2, row2) in zip(places, places[1:]):
        canvas.line(x1, y.at(row1.value), x2, y.at(row2.value), colour, 2.2, line.flat)
    for x, row in places if not line.flat else []:
        canvas.line(x, y.at(row.low), x, y.at(row.high), colour)
        canvas.dot(x, y.at(row.value), colour)
