titanrun cp llama3_debug mine.yaml
titanrun validate mine.yaml training.stepz=20
titanrun train mine.yaml dump_folder=runs/first training.steps=20 checkpoint.interval=10
titanrun runs ls
