//go:build race

package rdmatest_test

const raceEnabled = true
