//go:build !linux

package waking

import "time"

func several() bool { return false }

func bind(int) (unbind func()) { return func() {} }

// sleep sleeps while a word is value, for at most as long as timeout. It reports false if it cannot.
func sleep(*word, uint32, time.Duration) bool { return false }

// tell changes a word and wakes who sleeps there.
func tell(w *word, value uint32) { w.Store(value) }
