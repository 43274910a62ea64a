//go:build !linux

package pressure

func newWaiter(*System) waiter { return newSleeper() }
