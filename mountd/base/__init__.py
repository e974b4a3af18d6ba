"""What everything knows: errors and the one errno table, versions of files, their attributes.

Plain values, without trio, C or I/O, so that what runs inside training jobs may import them. Its modules are public:
`errors`, `version`, `attributes`. It never decides and never opens anything.
"""
