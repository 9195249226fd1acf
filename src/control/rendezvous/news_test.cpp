#include "control/rendezvous/news.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <utility>

namespace lockstep::control {
namespace {

TEST(NewsPages, WorkersSeeWhatTheLauncherWrites) {
  NewsPage launcher = NewsPage::make();
  const NewsPage worker = NewsPage::inherited(launcher.fd());
  EXPECT_EQ(worker.newcomers(), 0);
  launcher.set_newcomers(3);
  EXPECT_EQ(worker.newcomers(), 3);
}

TEST(NewsPages, WorkersSayHowManyMayTrain) {
  const NewsPage launcher = NewsPage::make();
  NewsPage worker = NewsPage::inherited(launcher.fd());
  EXPECT_EQ(launcher.most_workers(), 0) << "nobody has said so";
  worker.set_most_workers(8);
  EXPECT_EQ(launcher.most_workers(), 8);
  NewsPage::inherited(std::nullopt).set_most_workers(8);  // without a page nothing happens
}

TEST(NewsPages, WorkersSayWhatTheyDo) {
  NewsPage launcher = NewsPage::make();
  NewsPage worker = NewsPage::inherited(launcher.fd());
  EXPECT_EQ(launcher.said(3), Said{});
  for (const Doing doing : {Doing::kComputes, Doing::kWaits, Doing::kElse, Doing::kComputes})
    worker.say(3, doing);
  EXPECT_EQ(launcher.said(3), (Said{Doing::kComputes, 2}));
  EXPECT_EQ(launcher.said(2), Said{});
  launcher.forget(3);
  EXPECT_EQ(launcher.said(3), Said{});
  for (const int place : {-1, News::kMostPlaces}) {  // none of the page
    worker.say(place, Doing::kWaits);
    EXPECT_EQ(launcher.said(place), Said{});
  }
}

TEST(NewsPages, ADescriptorOfSomethingElseHasNoNews) {
  EXPECT_EQ(NewsPage::inherited(std::nullopt).newcomers(), 0);
  EXPECT_EQ(NewsPage::inherited(-1).newcomers(), 0);
  const base::Fd other(::memfd_create("other", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(other.get(), sizeof(News)), 0);
  EXPECT_EQ(NewsPage::inherited(other.get()).newcomers(), 0);
}

TEST(NewsPages, AMovedPageStaysMapped) {
  NewsPage first = NewsPage::make();
  NewsPage second = std::move(first);
  second.set_newcomers(1);
  EXPECT_EQ(second.newcomers(), 1);
  EXPECT_EQ(first.newcomers(), 0);  // NOLINT(bugprone-use-after-move): it has no page any more
}

}  // namespace
}  // namespace lockstep::control
