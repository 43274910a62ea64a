//go:build noshm || noiwarp || noibverbs

package providers

// absent is the entry of a provider that a build tag has left out.
func absent(name, tag string) entry {
	return entry{name: name, absent: "this binary was built with the tag " + tag}
}
