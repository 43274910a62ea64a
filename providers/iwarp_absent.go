//go:build noiwarp

package providers

var iwarpEntry = absent("iwarp", "noiwarp")
