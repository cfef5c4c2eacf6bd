"""How columns become inputs."""
