package dump

// FreshCells has a test bound the cells that are remembered, and returns what puts the bound back.
func FreshCells(n int) (restore func()) {
	old := freshCells
	freshCells = n
	return func() { freshCells = old }
}
