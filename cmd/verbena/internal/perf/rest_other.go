//go:build !amd64 && !arm64

package perf

func rest() {}
