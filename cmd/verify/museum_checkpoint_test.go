package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A command.json that names a folder by another key, or none at all, is an error and no run that passes.
func TestMuseumFoldersNamed(t *testing.T) {
	for _, text := range []string{`{}`, `{"base": "base"}`, `{"dir": "adapter", "bases": "base"}`, `[]`} {
		_, err := museumPaths("run", []byte(text))
		require.Error(t, err, text)
	}
	p, err := museumPaths("run", []byte(`{"dir": "adapter", "base": "../base"}`))
	require.NoError(t, err)
	require.Equal(t, "run/adapter", p.Dir)
	require.Equal(t, "base", p.Base)
}

// The folders of the fixed release are not what is expected of the affected one, nor the other way about: a row cannot pass by being
// judged without its bug.
func TestMuseumFoldersExchanged(t *testing.T) {
	dir := "../../golden/museum"
	rows, err := museumRows(dir)
	require.NoError(t, err)
	n := 0
	for _, e := range rows {
		if e.Framework != "PEFT" || e.LeftOut != "" {
			continue
		}
		require.NoError(t, museumJudge(t.Context(), dir, []*exhibit{e}))
		require.Empty(t, e.unexpected(), e.ID)
		e.affected, e.fixed = e.fixed, e.affected
		require.NotEmpty(t, e.unexpected(), e.ID)
		n++
	}
	require.NotZero(t, n)
}
