//go:build noibverbs

package providers

var ibverbsEntry = absent("ibverbs", "noibverbs")
