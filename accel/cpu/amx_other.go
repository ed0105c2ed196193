//go:build !(linux && amd64)

package cpu

func askForTiles() string { return "AMX tiles are asked for only on linux" }
