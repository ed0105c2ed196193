package report

import (
	"os"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
)

// SARIF is valid by the schema of OASIS (sarif-2.1/schema of oasis-tcs/sarif-spec), and what the schema forbids is refused.
func TestSARIF(t *testing.T) {
	text, err := os.ReadFile("testdata/sarif-schema-2.1.0.json")
	require.NoError(t, err)
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(string(text)))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	require.NoError(t, c.AddResource("sarif.json", doc))
	schema, err := c.Compile("sarif.json")
	require.NoError(t, err)
	valid := func(text string) error {
		v, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
		require.NoError(t, err)
		return schema.Validate(v)
	}
	known := sample()
	known.Results[1].Known = true
	known.Results[1].At = &check.FileLine{Path: "runs/a b/config.yaml", Number: 7}
	for _, r := range []*Report{sample(), hostile(), known, {}} {
		require.NoError(t, valid(write(t, r, Options{Format: "sarif"})))
	}
	text2 := write(t, known, Options{Format: "sarif"})
	require.Contains(t, text2, `"baselineState": "unchanged"`)
	require.Contains(t, text2, `"ruleId": "H2"`)
	require.Contains(t, text2, `"startLine": 7`)
	require.Contains(t, text2, `"uri": "runs/a%20b/config.yaml"`)
	require.Error(t, valid(strings.Replace(text2, `"startLine": 7`, `"startLine": 0`, 1)), "lines begin at 1")
	require.NotContains(t, text2, check.Pass.String())
	require.Error(t, valid(strings.Replace(text2, `"level": "error"`, `"level": "bad"`, 1)))
	require.Error(t, valid(strings.Replace(text2, `"version": "2.1.0"`, `"version": "2"`, 1)))
}
