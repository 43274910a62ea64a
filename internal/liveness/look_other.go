//go:build !linux

package liveness

import (
	"syscall"
	"time"
)

func look(syscall.RawConn) (counts, bool) { return counts{}, false }

func boundBackoff(syscall.RawConn, time.Duration) bool { return true }

func setUserTimeout(syscall.RawConn, time.Duration) {}
