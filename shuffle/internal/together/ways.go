package together

import "github.com/verbena-data/verbena/shuffle"

// AddWays adds those of one more process.
func AddWays(ways, more []shuffle.Way) []shuffle.Way {
next:
	for _, w := range more {
		for i := range ways {
			if had := &ways[i]; had.Transport == w.Transport && had.Mode == w.Mode && had.Why == w.Why {
				had.Peers += w.Peers
				continue next
			}
		}
		ways = append(ways, w)
	}
	return ways
}
