#include "formats/csv.h"

#include <limits>

#include "formats/testing.h"

namespace lockstep::formats {
namespace {

using Floats = std::vector<float>;
using Classes = std::vector<std::int64_t>;

CsvTable csv(std::string_view text, const CsvOptions& options = {}) {
  return parse_csv(span_of(text), "the-file", options);
}

void expect_bad_csv(std::string_view text, const std::string& part,
                    const CsvOptions& options = {}) {
  expect_refusal([&] { csv(text, options); }, "the-file", part);
}

TEST(Csv, TheLastColumnIsTheClassByDefault) {
  const CsvTable table = csv("1.5,-2,0\n3,4e-1,2\n");
  EXPECT_EQ(table.rows, 2);
  EXPECT_EQ(table.features, 2);
  EXPECT_EQ(table.values, (Floats{1.5F, -2, 3, 0.4F}));
  EXPECT_EQ(table.classes, (Classes{0, 2}));
  EXPECT_TRUE(table.numbers.empty());
  EXPECT_TRUE(table.names.empty());
}

TEST(Csv, AHeaderAndATargetByNameOrNumber) {
  const std::string text = "kind,\"height, in m\",width\n1,2.5,3\n0,4.5,5\n";
  for (const char* target : {"kind", "1"}) {
    const CsvTable table = csv(text, {.target = target});
    EXPECT_EQ(table.classes, (Classes{1, 0}));
    EXPECT_EQ(table.values, (Floats{2.5F, 3, 4.5F, 5}));
    EXPECT_EQ(table.names, (std::vector<std::string>{"height, in m", "width"}));
  }
}

TEST(Csv, NumbersAsTargets) {
  const CsvTable table = csv("a,b\n1,2.25\n3,-4\n", {.kind = CsvTarget::kNumber, .target = "b"});
  EXPECT_EQ(table.numbers, (Floats{2.25F, -4}));
  EXPECT_TRUE(table.classes.empty());
}

TEST(Csv, FormsOfTheSameTable) {
  const Floats values{1, 2, 3, 4};
  for (const char* text : {"1,2,0\n3,4,1", "1,2,0\n3,4,1\n", "1,2,0\r\n3,4,1\r\n", "1;2;0\n3;4;1\n",
                           "1\t2\t0\n3\t4\t1\n", "1,2,0\n3,4,1\n\n \r\n",
                           "\"1\",\"2\",\"0\"\n\"3\", \"4\" ,\"1\"\n", " 1 , 2 , 0 \n+3,4,1\n",
                           "\xef\xbb\xbf"
                           "1,2,0\n3,4,1\n",
                           "x,y,z\n1,2,0\n3,4,1\n", "1.0,2e0,0.0\n3.,4,1.000e+00\n"}) {
    const CsvTable table = csv(text);
    EXPECT_EQ(table.values, values) << text;
    EXPECT_EQ(table.classes, (Classes{0, 1})) << text;
  }
}

TEST(Csv, NumbersAreTheNearestFloats) {
  const CsvTable table = csv("0.1,16777217,1e-60,1e-45,0\n");
  EXPECT_EQ(table.values, (Floats{0.1F, 16777216, 0, std::numeric_limits<float>::denorm_min()}));
}

TEST(Csv, ErrorsNameLineAndColumn) {
  expect_bad_csv("a,b,c\n1,2,0\n1,x\ty,0\n", "line 3: column 2 (b): 'x\\x09y' is not a finite");
  expect_bad_csv("1,2,0\n1,,0\n", "line 2: column 2: '' is not a finite float");
  expect_bad_csv("1,nan,0\n", "line 1: column 2: 'nan'");
  expect_bad_csv("1,2,0\n1,1e39,0\n", "'1e39' is not a finite float");
  expect_bad_csv("1,2,0\n1,0x10,0\n", "'0x10'");
  expect_bad_csv("1,2,0\n1,2\n", "line 2: has 2 columns where the first line has 3");
  expect_bad_csv("1,2,0\n1,2,3,4\n", "line 2: has 4 columns");
  expect_bad_csv("1,2,0\n\n1,2,3\n", "line 2: is blank");
  expect_bad_csv("1;2,5;0\n", "'2,5' is not a finite float");
}

TEST(Csv, AWordInTheFirstLineOfDataIsNotTakenForAHeader) {
  expect_bad_csv("1,two,0\n1,2,0\n", "line 1: column 2: 'two'");
  EXPECT_EQ(csv("1,two,0\n1,2,0\n", {.header = CsvHeader::kPresent}).rows, 1);
  expect_bad_csv("a,b\n1,0\n", "line 1: column 1: 'a'", {.header = CsvHeader::kAbsent});
}

TEST(Csv, ClassesAreWholeNumbersFromZero) {
  for (const char* label : {"-1", "0.5", "x", "", "nan", "inf", "1e300", "9007199254740993"}) {
    expect_bad_csv(std::string("1,0\n1,") + label + "\n", "is not a class");
  }
}

TEST(Csv, QuotesMustCloseOnTheirLine) {
  expect_bad_csv("1,2\n1,\"2\n", "line 2: a quote is not closed");
  expect_bad_csv("1,2\n1,\"2\"3\n", "line 2: '3' follows a closing quote");
}

TEST(Csv, TablesWithoutSamplesOrTargetsAreRefused) {
  expect_bad_csv("", "has no samples");
  expect_bad_csv("\n\n", "has no samples");
  expect_bad_csv("a,b\n", "has no samples");
  expect_bad_csv("1\n2\n", "one column");
  expect_bad_csv("a,b\n1,2\n", "no column 'c'", {.target = "c"});
  expect_bad_csv("a,b\n1,2\n", "no column '3'", {.target = "3"});
  expect_bad_csv("a,a\n1,2\n", "more than one column 'a'", {.target = "a"});
}

using CsvFile = FormatsTest;

TEST_F(CsvFile, IsReadFromTheDiskGzipOrNot) {
  EXPECT_EQ(load_csv(put("table.csv", "1,0\n")).rows, 1);
  EXPECT_EQ(load_csv(put("table.csv.gz", gzip("1,0\n"))).rows, 1);
  expect_refusal([&] { load_csv(path("absent.csv")); }, "absent.csv", "No such file");
}

}  // namespace
}  // namespace lockstep::formats
