package dataset

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
)

// An array of rows is what the lines of the same rows are; what is wrong is told by its row.
func TestGSM8KArray(t *testing.T) {
	const first, second = `{"question": "1+2?", "answer": "It is 3.\n#### 3"}`, `{"id": 7, "question": "600*2?", "answer": "#### 1,200"}`
	lines, err := ParseGSM8K("x.jsonl", []byte(first+"\n"+second+"\n"))
	require.NoError(t, err)
	require.Equal(t, 1200., lines[1].Truth)
	array, err := ParseGSM8K("x.json", []byte(" [\n"+first+",\n"+second+"]\n"))
	require.NoError(t, err)
	require.Equal(t, lines, array)
	for text, want := range map[string]string{
		`[` + first + `, {"question": "?"}]`:                   `row 2`,
		`[` + first + `, {"question": "?", "answer": "none"}]`: `row 2`,
		`[` + first + `, 3]`:                                   `row 2`,
		`[` + first + `] ` + second:                            "",
		`[` + first + ` ` + second + `]`:                       "",
		`[]`:                                                   "has no rows",
		`[` + first:                                            "",
	} {
		_, err := ParseGSM8K("x.json", []byte(text))
		require.ErrorContains(t, err, want, text)
	}
}

// A Parquet file is refused with the line that converts it.
func TestParquet(t *testing.T) {
	_, err := ParseGSM8K("data/it's.parquet", []byte("PAR1\x15\x04PAR1"))
	require.True(t, format.IsMalformed(err), "%v", err)
	require.ErrorContains(t, err, `pandas.read_parquet(sys.argv[1]).to_json(sys.argv[2], orient="records", lines=True)'`)
	require.ErrorContains(t, err, `.jsonl'`)
}
