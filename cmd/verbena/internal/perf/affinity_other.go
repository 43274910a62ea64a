//go:build !linux

package perf

import "errors"

// Pin binds this process to processors where the system can.
func Pin([]int) error { return errors.New("perf: this system binds no process to processors") }
