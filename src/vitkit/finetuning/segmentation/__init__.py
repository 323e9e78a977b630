"""`vitkit finetune photos/ --masks masks/`: a model that classifies every pixel, in closed form and fine-tuned"""
