// Package futex waits on and wakes 32-bit words that may lie in memory which
// several processes share.
//
// It never sets FUTEX_PRIVATE_FLAG, so a waiter is found by the page behind the
// word and not by its address in one process.
package futex
