package main

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// At least so many bugs of releases are rebuilt, caught, and named first: fewer is a loss. No fixed release and no control fails.
const museumBugs, museumCaught, museumNamed, museumControls = 66, 66, 64, 16

// The museum as stored: every row is as expected, and the page in docs is what the command prints.
func TestMuseum(t *testing.T) {
	dir := "../../golden/museum"
	rows, err := museumRows(dir)
	require.NoError(t, err)
	require.NoError(t, museumJudge(t.Context(), dir, rows))
	for _, e := range rows {
		require.Empty(t, e.unexpected(), "%s: affected %s %s, fixed %s %s", e.ID, &e.affected, e.affected.first, &e.fixed, e.fixed.first)
	}
	bugs, caught, named, controls, failed, _ := museumSums(rows)
	t.Logf("%d bugs, %d caught, %d named, %d controls", bugs, caught, named, controls)
	require.Zero(t, failed)
	require.GreaterOrEqual(t, bugs, museumBugs)
	require.GreaterOrEqual(t, caught, museumCaught)
	require.GreaterOrEqual(t, named, museumNamed)
	require.GreaterOrEqual(t, controls, museumControls)
	page, err := os.ReadFile("../../docs/museum.md")
	require.NoError(t, err)
	var now bytes.Buffer
	museumPage(&now, rows)
	require.Equal(t, string(page), now.String(), "go run ./cmd/verify museum --dir golden/museum --markdown > docs/museum.md")
}
