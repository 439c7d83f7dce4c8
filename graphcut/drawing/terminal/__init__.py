"""The terminal renderer: pictures made with rich, one file for each kind of picture.

Names from a model become `Text`, never markup: a node called `[red]` is shown as it is. Characters that do not print,
such as escapes and line ends, are shown as escape sequences.
"""
