// Package onesided keeps the books of one-sided operations: which of an endpoint's are
// under way on a device, who waits for room there, and which operations the peer's
// runtime was asked for and has not answered. It takes no lock, knows no queue pair and
// no connection, and starts no goroutine: a carrier guards it by its own lock, posts and
// sends, and tells it what has become of that.
package onesided
