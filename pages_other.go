//go:build !unix

package verbena

func takePages(size int) ([]byte, error) { return make([]byte, size), nil }

func freePages([]byte) {}
