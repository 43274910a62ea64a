//go:build !linux

package iwarp

func (a *arrival) unread() bool { return false }
