//go:build !linux

package main

func countCalls() func() uint64 { return func() uint64 { return 0 } }
