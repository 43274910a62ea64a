// Package layers holds the rules on who may import whom that the linter's
// configuration can't express, as a test over the whole module.
package layers
