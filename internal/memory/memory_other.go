//go:build !linux

package memory

func bounds() []bound { return nil }
