// Package nap sleeps for less than a millisecond. Go's timers do not: in a process in which
// nothing else runs they end whole milliseconds later.
package nap
