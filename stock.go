package verbena

// stockBatch is how many values a stock takes from the heap together.
const stockBatch = 16

// A stock hands out values that are used once, so that each can tell a second Release
// from the first. Its owner's lock guards it.
type stock[T any] struct{ left []T }

func (k *stock[T]) take() *T {
	if len(k.left) == 0 {
		k.left = make([]T, stockBatch)
	}
	v := &k.left[0]
	k.left = k.left[1:]
	return v
}
