// Package terminal runs a built program on a pseudoterminal of a size, for the tests of the programs, and says what is wrong with the screen.
package terminal
