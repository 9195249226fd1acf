// Three kinds of pictures as SVG, without a library.
#pragma once

#include <string>
#include <vector>

namespace lockstep::bench {

// Lines over bytes, both axes logarithmic.
struct LinePlot {
  struct Point {
    double x = 0;
    double y = 0;  // above 0
  };
  struct Line {
    std::string name;
    std::vector<Point> points;
    bool dashed = false;  // a limit, not a system
  };
  std::string title;
  std::string caption;  // below: what the axes are
  std::vector<Line> lines;
};

// Lines over a few places at equal distances. The vertical axis need not begin at 0.
struct PlacePlot {
  std::string title;
  std::string caption;
  std::vector<std::string> places;    // from left to right
  std::vector<LinePlot::Line> lines;  // x is the number of a place, from 0
};

// Horizontal bars with whiskers.
struct BarPlot {
  struct Bar {
    std::string name;
    double value = 0;
    double low = 0;
    double high = 0;
    bool strong = false;  // a bar that the picture is about
  };
  std::string title;
  std::string caption;
  std::vector<Bar> bars;
};

std::string draw(const LinePlot& plot);
std::string draw(const PlacePlot& plot);
std::string draw(const BarPlot& plot);

}  // namespace lockstep::bench
