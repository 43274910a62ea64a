//go:build !linux || (!amd64 && !arm64) || noibverbs

package verbs

import (
	"errors"
	"runtime"
	"strings"
	"testing"
)

func TestThisBuildSaysWhyItCannot(t *testing.T) {
	_, err := Load()
	why := "noibverbs"
	if runtime.GOOS != "linux" || (runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64") {
		why = runtime.GOOS + "/" + runtime.GOARCH
	}
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), why) {
		t.Errorf("%v", err)
	}
}
