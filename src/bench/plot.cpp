#include "bench/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "bench/arguments.h"

namespace lockstep::bench {
namespace {

// Colours that colour-blind people can tell apart (Okabe and Ito), on light and dark pages.
constexpr std::array<const char*, 8> kColours = {"#0072b2", "#e69f00", "#009e73", "#d55e00",
                                                 "#cc79a7", "#56b4e9", "#8a8a00", "#6a3d9a"};
constexpr char kInk[] = "#303030";
constexpr char kFaint[] = "#dcdcdc";
constexpr char kStrong[] = "#0072b2";
constexpr char kOther[] = "#a8b4bd";

std::string escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    if (c == '&')
      safe += "&amp;";
    else if (c == '<')
      safe += "&lt;";
    else if (c == '>')
      safe += "&gt;";
    else
      safe += c;
  }
  return safe;
}

// The elements of one picture.
class Canvas {
 public:
  Canvas(double width, double height) : width_(width), height_(height) {}

  struct Style {
    const char* colour = kInk;
    double width = 1;
    bool dashed = false;
  };

  void line(double x1, double y1, double x2, double y2, const Style& style) {
    body_ += fmt::format(
        "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" "
        "stroke-width=\"{:g}\"{}/>\n",
        x1, y1, x2, y2, style.colour, style.width, dashes(style));
  }
  void path(const std::vector<LinePlot::Point>& points, const Style& style) {
    std::string text;
    for (const auto& point : points)
      text += fmt::format("{}{:.1f},{:.1f}", text.empty() ? "" : " ", point.x, point.y);
    body_ += fmt::format(
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{:g}\" "
        "stroke-linejoin=\"round\"{}/>\n",
        text, style.colour, style.width, dashes(style));
  }
  void dot(double x, double y, const char* fill) {
    body_ +=
        fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.6\" fill=\"{}\"/>\n", x, y, fill);
  }
  void box(double x, double y, double width, double height, const char* fill) {
    body_ += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"2\" "
        "fill=\"{}\"/>\n",
        x, y, width, height, fill);
  }
  // `anchor` is start, middle or end.
  void text(double x, double y, const char* anchor, const std::string& words, int size = 12) {
    body_ += fmt::format(
        "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-size=\"{}\">{}</text>\n", x, y,
        anchor, size, escaped(words));
  }
  std::string finished() const {
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:g}\" height=\"{1:g}\" "
        "viewBox=\"0 0 {0:g} {1:g}\" font-family=\"system-ui, sans-serif\" fill=\"{2}\">\n"
        "<rect width=\"{0:g}\" height=\"{1:g}\" fill=\"#ffffff\"/>\n{3}</svg>\n",
        width_, height_, kInk, body_);
  }

 private:
  static const char* dashes(const Style& style) {
    return style.dashed ? " stroke-dasharray=\"6 4\"" : "";
  }

  double width_;
  double height_;
  std::string body_;
};

// A number on paper.
struct Axis {
  double low = 0;
  double high = 1;
  double from = 0;  // pixels
  double to = 1;

  double at(double value) const { return from + (value - low) / (high - low) * (to - from); }
};

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

// Vertical lines at powers of two of bytes; some have a label.
void draw_sizes(Canvas& canvas, const Axis& x, double bottom, double top) {
  const int powers = static_cast<int>(x.high - x.low) + 1;
  const int every = std::max(1, (powers + 9) / 10);
  for (int i = 0; i < powers; ++i) {
    const double power = std::ceil(x.low) + i;
    if (power > x.high || i % every != 0) continue;
    canvas.line(x.at(power), bottom, x.at(power), top, {kFaint, 1});
    canvas.text(x.at(power), bottom + 18, "middle",
                spoken_size(static_cast<std::size_t>(std::exp2(power))), 11);
  }
}

void draw_decades(Canvas& canvas, const Axis& y, double left, double right) {
  for (double decade = std::ceil(y.low); decade <= y.high + 1e-9; ++decade) {
    canvas.line(left, y.at(decade), right, y.at(decade), {kFaint, 1});
    canvas.text(left - 8, y.at(decade) + 4, "end", fmt::format("{:g}", std::pow(10, decade)), 11);
  }
}

// A limit is grey and dashed. When the colours are used up they begin again, and those lines are
// dashed.
Canvas::Style style_of(const LinePlot::Line& line, std::size_t number) {
  if (line.dashed) return {"#707070", 2.2, true};
  return {kColours[number % kColours.size()], 2.2, number >= kColours.size()};
}

// Heights of names beside the ends of their lines: moved apart if they would cover each other, and
// not below `bottom`, if there is room above.
std::vector<double> heights_of_names(const std::vector<double>& ends, double bottom) {
  constexpr double kLineHeight = 16;
  std::vector<std::size_t> order(ends.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return ends[a] < ends[b]; });
  std::vector<double> heights = ends;
  for (std::size_t k = 1; k < order.size(); ++k)
    heights[order[k]] = std::max(heights[order[k]], heights[order[k - 1]] + kLineHeight);
  double lowest = bottom;
  for (auto i = order.rbegin(); i != order.rend(); ++i, lowest -= kLineHeight) {
    heights[*i] = std::min(heights[*i], lowest);
  }
  return heights;
}

// The lines with their names on the right; `x` and `y` give the places of values on paper.
void draw_lines(Canvas& canvas, const std::vector<LinePlot::Line>& lines, const Axis& x,
                const Axis& y) {
  std::vector<double> ends;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const Canvas::Style style = style_of(lines[i], i);
    std::vector<LinePlot::Point> points;
    for (const auto& point : lines[i].points) points.push_back({x.at(point.x), y.at(point.y)});
    canvas.path(points, style);
    for (const auto& point : points) {
      if (!lines[i].dashed) canvas.dot(point.x, point.y, style.colour);
    }
    ends.push_back(points.empty() ? y.from : points.back().y);
  }
  const auto heights = heights_of_names(ends, y.from);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    canvas.line(x.to + 6, heights[i], x.to + 22, heights[i], style_of(lines[i], i));
    canvas.text(x.to + 27, heights[i] + 4, "start", lines[i].name);
  }
}

// A distance of lines on an axis that is easy to read: 1, 2 or 5 times a power of ten, and 4 to 10
// of them in the range.
double readable_step(double range) {
  const double power = std::pow(10, std::floor(std::log10(range)));
  return range / power < 2 ? power / 5 : range / power < 5 ? power / 2 : power;
}

}  // namespace

std::string draw(const LinePlot& plot) {
  constexpr double kWidth = 860;
  constexpr double kHeight = 470;
  Range across;
  Range up;
  std::vector<LinePlot::Line> lines = plot.lines;
  for (auto& line : lines) {
    for (auto& point : line.points) {
      point = {std::log2(point.x), std::log10(point.y)};
      across.add(point.x);
      up.add(point.y);
    }
  }
  if (across.low > across.high) return Canvas(kWidth, kHeight).finished();
  const Axis x{across.low, std::max(across.high, across.low + 1), 70, kWidth - 150};
  const Axis y{std::floor(up.low), std::max(std::ceil(up.high), std::floor(up.low) + 1),
               kHeight - 60, 50};
  Canvas canvas(kWidth, kHeight);
  canvas.text(x.from, 26, "start", plot.title, 15);
  draw_sizes(canvas, x, y.from, y.to);
  draw_decades(canvas, y, x.from, x.to);
  canvas.text((x.from + x.to) / 2, kHeight - 18, "middle", plot.caption);
  draw_lines(canvas, lines, x, y);
  return canvas.finished();
}

std::string draw(const PlacePlot& plot) {
  constexpr double kWidth = 860;
  constexpr double kHeight = 470;
  Range up;
  for (const auto& line : plot.lines) {
    for (const auto& point : line.points) up.add(point.y);
  }
  Canvas canvas(kWidth, kHeight);
  canvas.text(70, 26, "start", plot.title, 15);
  if (up.low > up.high) return canvas.finished();
  const double step = readable_step(std::max(up.high - up.low, up.high / 10));
  const double low = std::floor(up.low / step) * step;
  const Axis x{-0.3, static_cast<double>(plot.places.size()) - 0.7, 70, kWidth - 200};
  const Axis y{low, std::max(std::ceil(up.high / step) * step, low + step), kHeight - 60, 50};
  for (double value = y.low; value <= y.high + step / 2; value += step) {
    canvas.line(x.from, y.at(value), x.to, y.at(value), {kFaint, 1});
    canvas.text(x.from - 8, y.at(value) + 4, "end", fmt::format("{:g}", value), 11);
  }
  for (std::size_t i = 0; i < plot.places.size(); ++i) {
    const double at = x.at(static_cast<double>(i));
    canvas.line(at, y.from, at, y.to, {kFaint, 1});
    canvas.text(at, y.from + 18, "middle", plot.places[i], 11);
  }
  canvas.text((x.from + x.to) / 2, kHeight - 18, "middle", plot.caption);
  draw_lines(canvas, plot.lines, x, y);
  return canvas.finished();
}

std::string draw(const BarPlot& plot) {
  constexpr double kWidth = 860;
  constexpr double kRow = 38;
  const double height = 96 + kRow * static_cast<double>(plot.bars.size());
  constexpr double kLetter = 6.6;  // of names, about
  double most = 0;
  double names = 170;  // how much room they get
  for (const auto& bar : plot.bars) {
    most = std::max({most, bar.value, bar.high});
    names = std::max(names, 20 + kLetter * static_cast<double>(bar.name.size()));
  }
  const double step = readable_step(std::max(most, 1e-9));
  const Axis x{0, std::max(std::ceil(most / step), 1.0) * step, names, kWidth - 90};
  const double top = 46;
  const double bottom = top + kRow * static_cast<double>(plot.bars.size());
  Canvas canvas(kWidth, height);
  canvas.text(16, 26, "start", plot.title, 15);
  for (double value = 0; value <= x.high + step / 2; value += step) {
    canvas.line(x.at(value), top, x.at(value), bottom, {kFaint, 1});
    canvas.text(x.at(value), bottom + 17, "middle", fmt::format("{:g}", value), 11);
  }
  canvas.text((x.from + x.to) / 2, bottom + 38, "middle", plot.caption);
  for (std::size_t i = 0; i < plot.bars.size(); ++i) {
    const auto& bar = plot.bars[i];
    const double middle = top + kRow * (static_cast<double>(i) + 0.5);
    canvas.text(x.from - 10, middle + 4, "end", bar.name);
    canvas.box(x.from, middle - 11, x.at(bar.value) - x.from, 22, bar.strong ? kStrong : kOther);
    canvas.line(x.at(bar.low), middle, x.at(bar.high), middle, {kInk, 1.4});
    for (const double end : {bar.low, bar.high})
      canvas.line(x.at(end), middle - 5, x.at(end), middle + 5, {kInk, 1.4});
    canvas.text(x.at(std::max(bar.value, bar.high)) + 8, middle + 4, "start",
                fmt::format("{:.{}f}", bar.value, bar.value < 10 ? 2 : 1));
  }
  return canvas.finished();
}

}  // namespace lockstep::bench
