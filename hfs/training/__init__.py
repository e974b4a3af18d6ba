"""The inside of what training jobs import (`hfs.hint`, `hfs.samplers`, `hfs.exposed`): not for others.

Never imports trio, pyfuse3 or torch.
"""
