//go:build !linux || (!amd64 && !arm64) || noibverbs

package verbs

import (
	"fmt"
	"runtime"
)

// Library is the loaded pair of libibverbs and librdmacm. This build has none.
type Library struct{}

// Load says why this build can't use the libraries.
func Load() (*Library, error) {
	if runtime.GOOS != "linux" || (runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64") {
		return nil, fmt.Errorf("verbs: %w on %s/%s: rdma-core is bound on linux/amd64 and linux/arm64 only", ErrUnavailable, runtime.GOOS, runtime.GOARCH)
	}
	return nil, fmt.Errorf("verbs: %w: this program was built with the tag noibverbs; build it without", ErrUnavailable)
}
