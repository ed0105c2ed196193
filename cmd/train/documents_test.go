package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// statement is a row of docs/documents.md.
type statement struct {
	section, number, text string
	command               string   // empty: the row says what else shows the statement
	exit                  int      // of the command
	words                 []string // that it prints
}

var codeSpan = regexp.MustCompile("`([^`]+)`")

// readDocuments returns the rows of docs/documents.md, and the commands that its rows need to have run.
func readDocuments(t testing.TB) (rows []statement, first []string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/documents.md")
	require.NoError(t, err)
	section, fenced := "", false
	for _, line := range strings.Split(string(text), "\n") {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
			continue
		}
		if fenced {
			first = append(first, line)
			continue
		}
		if name, is := strings.CutPrefix(line, "## "); is {
			section = name[:1]
		}
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| #") {
			continue
		}
		cells := strings.Split(strings.ReplaceAll(strings.Trim(line, "|"), `\|`, "\x00"), "|")
		require.Len(t, cells, 4, line)
		for i, c := range cells {
			cells[i] = strings.TrimSpace(strings.ReplaceAll(c, "\x00", "|"))
		}
		row := statement{section: section, number: cells[0], text: cells[1]}
		for _, span := range codeSpan.FindAllStringSubmatch(cells[3], -1) {
			row.words = append(row.words, span[1])
		}
		require.NotEmpty(t, row.words, "%s %s: nothing is demanded", section, row.number)
		if cells[2] != "–" {
			command := codeSpan.FindAllStringSubmatch(cells[2], -1)
			require.Len(t, command, 1, line)
			row.command = command[0][1]
			if strings.HasPrefix(cells[3], "exit ") {
				_, err := fmt.Sscanf(cells[3], "exit %d", &row.exit)
				require.NoError(t, err, line)
			}
		}
		rows = append(rows, row)
	}
	return rows, first
}

// Every statement of the four documents has a row, and every row a command or what else shows it. The statements are those that the
// tables beside this test number.
func TestDocumentsHaveRows(t *testing.T) {
	rows, first := readDocuments(t)
	require.NotEmpty(t, first)
	count := map[string]int{}
	named := regexp.MustCompile(`^(train|verify) [-a-z]+`)
	for _, row := range rows {
		count[row.section]++
		require.Equal(t, fmt.Sprint(count[row.section]), row.number, "%s: the rows are numbered", row.section)
		if row.command == "" {
			continue
		}
		program := false
		for _, part := range strings.FieldsFunc(row.command, func(r rune) bool { return r == '|' || r == '&' }) {
			program = program || named.MatchString(strings.TrimPrefix(strings.TrimSpace(part), "CUDA_VISIBLE_DEVICES=0,1 "))
		}
		require.True(t, program, "%s %s: %s runs neither train nor verify", row.section, row.number, row.command)
	}
	for section, table := range map[string]map[string][]string{"A": shieldedRows, "B": grpoRows, "C": ppoRows, "D": arcRows} {
		statements := 0
		for row := range table {
			if strings.HasPrefix(row, section+".0 ") {
				statements++
			}
		}
		require.Equal(t, statements, count[section], "statements of document %s", section)
	}
}
